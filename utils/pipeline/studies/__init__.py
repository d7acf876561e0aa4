"""What only lessons measure: bases to merge into, calibration texts, stored weights, LoRA."""
