"""The maintained quantizers, and what all quantizers share: calibration data and file formats."""
