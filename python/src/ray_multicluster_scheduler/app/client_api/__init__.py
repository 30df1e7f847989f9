"""The calls: submit_job, unified_scheduler."""
