"""Ray and Ray Tune: the cluster, the experiment, the workers' processes and their GPUs."""
