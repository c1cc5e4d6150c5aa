"""Formats of vendors' tokens: a fixed beginning, the characters that follow, and their number.

The formats are those that vendors publish for secret scanning. A beginning alone proves nothing, so
`pii_secrets` also requires that the token looks random. To add a format, add a line to `_FORMS`.
"""

import re

_WORD = "A-Za-z0-9_-"
_ALNUM = "[A-Za-z0-9]"
_HEX = "[a-f0-9]"
_URL = f"[{_WORD}]"

# Beginning (a pattern of constant alternatives) and rest of each format, by vendor.
_FORMS = {
    "aws": ("A(?:KIA|SIA|BIA|CCA)", "[A-Z2-7]{16}"),
    "aws_bedrock": ("ABSK", "[A-Za-z0-9+/]{100,270}={0,2}"),
    "github": ("gh[pousr]_", f"{_ALNUM}{{36,255}}"),
    "github_fine": ("github_pat_", f"{_ALNUM}{{22}}_{_ALNUM}{{59}}"),
    "gitlab": (
        "gl(?:pat|dt|ptt|rt|rtr|cbt|ft|imt|agent|soat|ffct|oas)-",
        rf"{_URL}{{20,255}}(?:\.[0-9a-z]{{2}}\.[0-9a-z]{{9}})?",
    ),
    "gitlab_runner": ("GR1348941", f"{_URL}{{20}}"),
    "slack": ("xox[abcdeoprs]-", "(?=[A-Za-z%-]{0,40}[0-9])[A-Za-z0-9%-]{20,250}"),
    "slack_rotated": (r"xoxe\.xox[bp]-", "[0-9]-[A-Za-z0-9-]{30,250}"),
    "slack_app": ("xapp-", "[0-9]-[A-Z0-9]{8,14}-[0-9]{8,16}-[a-f0-9]{32,80}"),
    "slack_hook": (
        r"hooks\.slack\.com/",
        rf"(?:services/T[A-Z0-9]{{7,12}}/B[A-Z0-9]{{7,12}}/{_ALNUM}{{18,40}}"
        rf"|workflows/T[A-Z0-9]{{7,12}}/A[A-Z0-9]{{7,12}}/[0-9]{{10,24}}/{_ALNUM}{{18,40}})",
    ),
    "discord_hook": (
        r"(?:(?:canary|ptb)\.)?discord(?:app)?\.com/api/webhooks/",
        f"[0-9]{{16,20}}/{_URL}{{60,80}}",
    ),
    "discord_bot": (
        "[MNO](?=[A-Za-z0-9_-]{23,27}[.])",
        rf"{_URL}{{23,27}}\.{_URL}{{6}}\.{_URL}{{27,40}}",
    ),
    "discord_user": (r"mfa\.", f"{_URL}{{84}}"),
    "telegram": ("[0-9]{8,10}:AA", f"{_URL}{{33}}"),
    "twilio": ("(?:AC|SK)(?=[a-f0-9]{32})", f"{_HEX}{{32}}"),
    "sendgrid": (r"SG\.", rf"{_URL}{{22}}\.{_URL}{{43}}"),
    "mailgun": ("key-", f"{_HEX}{{32}}"),
    "mailchimp": ("(?=[a-f0-9]{32}-us[0-9])", f"{_HEX}{{32}}-us[0-9]{{1,2}}"),
    "brevo": ("xkeysib-", f"{_HEX}{{64}}-{_ALNUM}{{16}}"),
    "google": ("AIza", f"{_URL}{{35}}"),
    "google_secret": ("GOCSPX-", f"{_URL}{{28}}"),
    "google_access": (r"ya29\.", f"{_URL}{{20,1000}}"),
    "google_refresh": ("1//0", f"{_URL}{{40,120}}"),
    "firebase": ("AAAA(?=[A-Za-z0-9_-]{7}:)", f"{_URL}{{7}}:{_URL}{{140}}"),
    "stripe": ("(?:sk|rk|pk)_(?:live|test)_", f"{_ALNUM}{{16,247}}"),
    "stripe_hook": ("whsec_", "[A-Za-z0-9+/]{24,64}={0,2}"),
    "sk": ("sk-", f"(?=[A-Za-z_-]{{0,40}}[0-9]){_URL}{{32,250}}"),  # OpenAI, Anthropic and others
    "hugging_face": ("hf_", f"{_ALNUM}{{34,40}}"),
    "hugging_face_org": ("api_org_", f"{_ALNUM}{{34}}"),
    "replicate": ("r8_", f"{_ALNUM}{{37}}"),
    "groq": ("gsk_", f"{_ALNUM}{{40,60}}"),
    "perplexity": ("pplx-", f"{_ALNUM}{{40,60}}"),
    "xai": ("xai-", f"{_ALNUM}{{70,90}}"),
    "langsmith": ("lsv2_(?:pt|sk)_", f"{_HEX}{{32}}_{_HEX}{{10}}"),
    "npm": ("npm_", f"{_ALNUM}{{36}}"),
    "pypi": ("pypi-AgE", f"{_URL}{{50,255}}"),
    "rubygems": ("rubygems_", f"{_HEX}{{48}}"),
    "docker": ("dckr_(?:pat|oat)_", f"{_URL}{{27,40}}"),
    "digitalocean": ("do[por]_v1_", f"{_HEX}{{64}}"),
    "shopify": ("shp(?:at|ca|pa|ss)_", "[a-fA-F0-9]{32}"),
    "databricks": ("dapi", f"{_HEX}{{32}}(?:-[0-9])?"),
    "vault": (r"hv[sbr]\.", f"{_URL}{{24,300}}"),
    "azure": (r"[A-Za-z0-9_.~-]{3}[0-9]Q~", "[A-Za-z0-9_.~-]{31,34}"),
    "grafana": ("gl(?:sa|c)_", f"{_ALNUM}{{32,400}}(?:_[a-f0-9]{{8}})?"),
    "linear": ("lin_api_", f"{_ALNUM}{{40}}"),
    "notion": ("(?:ntn|secret)_", f"(?=[A-Za-z]{{0,30}}[0-9]){_ALNUM}{{40,50}}"),
    "figma": ("figd_", f"{_URL}{{38,50}}"),
    "airtable": (r"pat[A-Za-z0-9]{14}\.", f"{_HEX}{{64}}"),
    "atlassian": ("AT[AC]TT3", "[A-Za-z0-9_=-]{100,250}"),
    "postman": ("PMAK-", f"{_HEX}{{24}}-{_HEX}{{34}}"),
    "new_relic": ("NR(?:AK|JS|II)-", f"{_URL}{{19,40}}"),
    "sentry": ("sntry[su]_", f"{_URL}{{40,400}}"),
    "doppler": (r"dp\.(?:pt|st|ct|sa)\.", f"{_ALNUM}{{40,44}}"),
    "pulumi": ("pul-", f"{_HEX}{{40}}"),
    "terraform": (r"[A-Za-z0-9]{14}\.atlasv1\.", f"{_URL}{{60,70}}"),
    "supabase": ("sbp_", f"{_HEX}{{40}}"),
    "planetscale": ("pscale_(?:tkn|pw|oauth)_", f"{_URL}{{32,64}}"),
    "tailscale": ("tskey-[a-z]{3,6}-", f"{_ALNUM}{{10,20}}-{_ALNUM}{{20,40}}"),
    "square": ("sq0(?:atp|csp)-", f"{_URL}{{22,43}}"),
    "square_access": ("EAAA", f"{_URL}{{60}}"),
    "facebook": ("EAA[A-Z]", f"{_ALNUM}{{80,250}}"),
    "dropbox": (r"sl\.", f"{_URL}{{120,1500}}"),
    "alibaba": ("LTAI", f"{_ALNUM}{{12,24}}"),
    "tencent": ("AKID", f"{_ALNUM}{{32}}"),
    "age": ("AGE-SECRET-KEY-1", "[A-Z0-9]{58}"),
}
FORMS = {name: re.compile(rf"{begin}{rest}(?![{_WORD}])") for name, (begin, rest) in _FORMS.items()}
# Matches where a token of one of the formats may begin; the last group is the name of the format.
FORM_BEGINS = re.compile(
    "|".join(f"(?P<{name}>{begin})" for name, (begin, _) in _FORMS.items()).encode()
)
LONGEST_BEFORE_TOKEN = 28  # characters of a token before its first long run of letters and digits
