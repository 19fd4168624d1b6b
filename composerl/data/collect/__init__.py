"""Collectors: environments stepped by a policy."""
