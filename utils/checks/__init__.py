"""The checks that the labs call. A folder for each lab; `kit` is what they share."""
