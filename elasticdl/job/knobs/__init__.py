"""The knobs of a job, one file per group; `elasticdl.job.spec.JobSpec` puts the groups together."""
