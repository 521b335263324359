"""Executes stage programs: in one process, or over torch.distributed."""
