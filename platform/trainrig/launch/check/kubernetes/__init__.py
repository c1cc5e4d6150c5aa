"""What holds for RayClusters and RayJobs of KubeRay."""
