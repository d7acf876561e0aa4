"""What only lessons measure: bases to merge into, calibration, stored weights, steps, LoRA."""
