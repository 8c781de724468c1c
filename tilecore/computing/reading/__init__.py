"""What stands for tensors, lists and numbers while a function is read."""
