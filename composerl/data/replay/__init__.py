"""Replay: storages, samplers, transforms and mixtures for TorchRL replay buffers."""
