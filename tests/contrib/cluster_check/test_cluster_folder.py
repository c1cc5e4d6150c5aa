"""The files next to the cluster files: minimal policies, the image, no secrets."""

import json
import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from moto.iam.policy_validation import IAMPolicyDocumentValidator, IAMTrustPolicyDocumentValidator

from trainrig_contrib.cluster_check.cluster_check import find_secrets

CLUSTER = Path(__file__).parents[3] / "cluster"
POLICIES = ("head", "worker", "launcher")
FILES = sorted(path for path in CLUSTER.rglob("*") if path.is_file())
# Services whose actions are named like botocore's operations. S3's object actions have other names.
NAMED_AS_CALLED = ("ec2", "iam", "ecr")


def policy(name: str) -> list[dict[str, Any]]:
    statements = json.loads((CLUSTER / "iam" / f"{name}.json").read_text())["Statement"]
    return [{k: v if k == "Condition" else [v] if isinstance(v, str) else v for k, v in s.items()}
            for s in statements]  # fmt: skip


def actions(name: str) -> set[str]:
    return {action for statement in policy(name) for action in statement["Action"]}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_the_form_of_one(name: str) -> None:
    IAMPolicyDocumentValidator((CLUSTER / "iam" / f"{name}.json").read_text()).validate()


def test_only_machines_take_the_roles() -> None:
    text = (CLUSTER / "iam" / "trust.json").read_text()
    IAMTrustPolicyDocumentValidator(text).validate()
    assert json.loads(text)["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com"}


@pytest.mark.parametrize("name", POLICIES)
def test_each_right_exists(name: str) -> None:
    session = botocore.session.get_session()
    known = {s: set(session.get_service_model(s).operation_names) for s in NAMED_AS_CALLED}
    known["iam"].add("PassRole")  # an action without an operation
    for action in actions(name):
        service, _, operation = action.partition(":")
        assert operation in known.get(service, {operation}), action


@pytest.mark.parametrize("name", POLICIES)
def test_only_read_rights_cover_all_resources(name: str) -> None:
    looks = re.compile(r"ec2:Describe\w+|ecr:GetAuthorizationToken|servicequotas:List\w+")
    for statement in policy(name):
        assert not any("*" in action for action in statement["Action"])
        if "*" in statement["Resource"]:
            assert all(looks.fullmatch(action) for action in statement["Action"]), statement["Sid"]


def test_workers_rent_nothing_and_pass_no_role() -> None:
    assert {action.partition(":")[0] for action in actions("worker")} == {"s3", "ecr"}


@pytest.mark.parametrize(("name", "passes"), [("head", "worker"), ("launcher", "head")])
def test_a_role_is_passed_on_one_step_only(name: str, passes: str) -> None:
    (statement,) = (rule for rule in policy(name) if "iam:PassRole" in rule["Action"])
    assert [arn.rpartition("/")[2] for arn in statement["Resource"]] == [f"trainrig-{passes}"]
    assert statement["Condition"]["StringEquals"]["iam:PassedToService"] == "ec2.amazonaws.com"


@pytest.mark.parametrize("name", ["head", "launcher"])
def test_only_tagged_instances_are_started_and_ended(name: str) -> None:
    for statement in policy(name):
        machines = any(":instance/" in resource for resource in statement["Resource"])
        if machines and "ec2:RunInstances" in statement["Action"]:
            assert "aws:RequestTag/trainrig:cluster" in statement["Condition"]["StringEquals"]
        if "ec2:TerminateInstances" in statement["Action"]:
            assert "aws:ResourceTag/trainrig:cluster" in statement["Condition"]["StringEquals"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_holds_a_secret(path: Path) -> None:
    assert list(find_secrets(path.read_text().splitlines())) == []


def test_the_image_runs_as_an_unprivileged_user_with_pinned_versions() -> None:
    lines = (CLUSTER / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER ray"]
    installed = [line for line in lines if "pip install" in line]
    assert installed
    assert all("constraints.txt" in line for line in installed)


def read_instructions() -> list[tuple[str, str]]:
    """Return the instructions of the image, with their lines joined and without comments."""
    text = re.sub(r"^\s*#.*\n", "", (CLUSTER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_images_base_is_pinned_and_its_last_stage_has_no_root_and_no_secret() -> None:
    instructions = read_instructions()
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    assert set(bases) == {"${PYTHON}"}
    (base,) = [rest for name, rest in instructions if name == "ARG" and rest.startswith("PYTHON=")]
    assert re.fullmatch(r"PYTHON=python:\d+\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base)
    names = [name for name, _ in instructions]
    assert names.index("USER") > len(names) - 1 - names[::-1].index("FROM")
    assert "ADD" not in names  # unlike COPY, it downloads and unpacks
    for name, rest in instructions:
        if name in ("ARG", "ENV"):
            assert not re.search(r"(?i)(password|secret|token|key)\w*=\S", rest), rest
        if name == "RUN":
            assert not re.search(r"(curl|wget) .*\|\s*(ba)?sh", rest), rest
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest


def test_what_the_image_copies_is_let_in_and_exists() -> None:
    allowed = [
        line[1:]
        for line in (CLUSTER.parent / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for name, rest in read_instructions():
        if name == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert source in allowed
                assert (CLUSTER.parent / source).exists()


def test_the_images_python_is_found_by_a_login_shell_too() -> None:
    """Debian's /etc/profile resets PATH, and Ray's launcher runs commands in a login shell."""
    text = (CLUSTER / "Dockerfile").read_text()
    assert "export PATH=/opt/venv/bin:$PATH' > /etc/profile.d/" in text
    assert re.search(r"^ENV PATH=/opt/venv/bin:\$PATH", text, re.MULTILINE)
