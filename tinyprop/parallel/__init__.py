"""Processes that train one network together, and executors for independent pieces of work."""
