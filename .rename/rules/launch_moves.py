"""Rooms of launch/."""

MOVES = {
    "launch.child": "processes.child_process",
    "launch.guard": "processes.guard",
    "launch.masking": "launch.redaction",
    "launch.launch_verbs": "launch.launch_verbs",
    "launch.record": "launch.record.run_record",
    "launch.live_runs": "launch.record.live_runs",
    "launch.reached": "launch.record.run_progress",
    "launch.known_clusters": "launch.record.known_clusters",
    "launch.submit": "launch.submit.submit",
    "launch.preflight": "launch.submit.preflight",
    "launch.claimed": "launch.submit.output_check",
    "launch.needs": "launch.submit.resource_request",
    "launch.packing": "launch.submit.package_upload",
    "launch.run_paths": "launch.submit.run_paths",
    "launch.writable": "launch.submit.write_access",
    "launch.cluster_view": "launch.submit.cluster_view",
    "launch.attend": "launch.supervise.entrypoint",
    "launch.attendant": "launch.supervise.job_supervisor",
    "launch.causes": "launch.supervise.end_causes",
    "launch.retries": "launch.supervise.retries",
    "launch.limits": "launch.supervise.limits",
    "launch.live_nodes": "launch.supervise.live_nodes",
    "launch.log_copy": "launch.supervise.log_copy",
    "launch.notify": "launch.supervise.notify",
    "launch.predecessor": "launch.supervise.previous_supervisor",
    "launch.versions": "launch.supervise.versions",
    "launch.metering": "launch.cost.metering",
    "launch.spending": "launch.cost.spending",
    "launch.follow": "launch.follow.follow",
    "launch.watch": "launch.follow.resubmit",
    "launch.stop": "launch.follow.stop",
    "launch.jobs_table": "launch.follow.jobs_table",
    # check
    "launch.check.aws": "launch.check.clouds.aws",
    "launch.check.gcp": "launch.check.clouds.gcp",
    "launch.check.ec2_shape": "launch.check.clouds.ec2_shape",
    "launch.check.laptop": "launch.check.clouds.laptop",
    "launch.check.expiry": "launch.check.clouds.expiry",
    "launch.check.kuberay": "launch.check.kubernetes.kuberay",
    "launch.check.rayjob": "launch.check.kubernetes.rayjob",
    "launch.check.pods": "launch.check.kubernetes.pods",
    "launch.check.quantities": "launch.check.kubernetes.quantities",
    "launch.check.kubernetes_shape": "launch.check.kubernetes.kubernetes_shape",
    # clusters
    "launch.clusters.ec2": "launch.clusters.providers.ec2",
    "launch.clusters.compute": "launch.clusters.providers.compute_engine",
    "launch.clusters.kubernetes": "launch.clusters.providers.kubernetes",
    "launch.clusters.commands": "launch.clusters.providers.commands",
    "launch.clusters.processes": "launch.clusters.providers.local_processes",
    "launch.clusters.machine": "launch.clusters.providers.machine",
}
PACKAGES = {
    "launch.record": "Records of runs in a home: attempts, events, progress, clusters they ran on.",
    "launch.submit": "Submission: all that can be checked before it, the upload, the job.",
    "launch.supervise": "The supervisor of a job: retries by cause, limits, cost, log, last word.",
    "launch.cost": "What a run has cost: nodes metered, money and time spent.",
    "launch.follow": "Runs under way: logs followed, jobs listed, stopped, submitted again.",
    "launch.check.clouds": "What holds for cluster files of AWS, of Google Cloud and of one laptop.",
    "launch.check.kubernetes": "What holds for RayClusters and RayJobs of KubeRay.",
    "launch.clusters.providers": "Whose machines a cluster is made of: EC2, Compute Engine, Kubernetes, this one.",
}
TEST_MOVES = {
    "tests/launch/test_attend_takeover.py": "tests/launch/supervise/test_takeover.py",
    "tests/launch/test_attend_run.py": "tests/launch/supervise/test_supervised_run.py",
    "tests/launch/clusters/test_aws.py": "tests/launch/clusters/providers/test_ec2.py",
}
MOVE_PATCHES = [
    (
        "platform/trainrig/processes/child_process.py",
        'resources.files("trainrig.launch").joinpath("guard.py")',
        'resources.files("trainrig.processes").joinpath("guard.py")',
    ),
]
MOVE_PATCHES += [
    (
        "tests/launch/submit/test_package_upload.py",
        '    code = "import trainrig.launch.supervise.entrypoint, trainrig.hardware as h; h.load(); print(h.__file__)"\n',
        '    code = (\n        "import trainrig.launch.supervise.entrypoint, trainrig.hardware as h; "\n        "h.load(); print(h.__file__)"\n    )\n',
    ),
]
