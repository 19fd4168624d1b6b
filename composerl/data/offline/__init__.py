"""Offline data: files and generated behaviours, checked, as datasets and replay buffers."""
