"""Names of what was merged last."""

NAMES = [
    ("command_line.help.Command", "HelpCommand"),
    ("command_line.help.Group", "HelpGroup"),
    ("scaling.laws.choose_form.Forms", "LawForms"),
    ("ray_runtime.ray_local.answers", "reachable"),
    ("scaling.plan.loss_prediction.Prediction", "LossPrediction"),
    ("posttrain.chat.RefusedRow", "RefusedConversation"),
    ("launch.check.pools.Price", "PoolPrice"),
    ("train.elastic.warm_actors.Conductor", "TrainController"),
]
LOCAL = "platform/trainrig/ray_runtime/ray_local.py tests/ray_runtime/test_ray_local.py"
TOKENS = [
    ("_group", "_attempt", "platform/trainrig/train/elastic/trainer.py"),
    ("speaker", "generator", "platform/trainrig/cli.py"),
    ("patience", "timeout", "platform/trainrig/launch/ray_jobs.py tests/launch/test_hung_dashboard.py"),
    ("door", "endpoint", LOCAL),
    ("doors", "endpoints", LOCAL),
    ("_doors", "_endpoints", LOCAL),
    ("_how_keeper_died", "_how_agent_died", "platform/trainrig/train/elastic/* tests/train/elastic/*"),
]
