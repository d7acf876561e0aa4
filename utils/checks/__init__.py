"""The checks that the labs call. One file per lab; each check answers in words and pictures."""
