"""What one step costs: a model's FLOPs and parameters, the machine, plans as columns, memory, step time, timeline."""
