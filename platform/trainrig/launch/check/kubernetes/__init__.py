"""Checks of KubeRay's RayClusters and RayJobs."""
