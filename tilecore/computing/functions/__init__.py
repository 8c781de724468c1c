"""What torch and NumPy compute, as computations know it: functions of nodes that return nodes."""
