"""Rooms of the ground floor: config/, storage/, command_line/, ray_runtime/, processes/; what stages are told."""

MOVES = {
    "command_help": "command_line.help",
    "command_options": "command_line.options",
    "completion": "command_line.completion",
    "tokens_verbs": "tokens.tokens_verbs",
    "key_places": "config.key_places",
    "toml_text": "config.toml_text",
    "absolute_paths": "config.absolute_paths",
    "run_file_schema": "config.run_file_schema",
    "utf8": "storage.utf8",
    "writable": "storage.writable",
    "s3_retries": "storage.s3_retries",
    "process_identity": "processes.process_identity",
    "ray_local": "ray_runtime.ray_local",
    "ray_pools": "ray_runtime.ray_pools",
    "ray_session": "ray_runtime.ray_session",
    "train.sums": "train.loss_table",
    "evaluate.run": "evaluate.run_file",
    "posttrain.run": "posttrain.run_file",
    "scaling.quantity": "command_line.quantity",
}
FILES = {
    "platform/trainrig/config.py": "platform/trainrig/config/__init__.py",
    "platform/trainrig/storage.py": "platform/trainrig/storage/__init__.py",
}
PACKAGES = {
    "command_line": "The command line: what its verbs share.",
    "ray_runtime": "The Ray that stages run on: started or joined, its nodes and pools, its loss.",
}
