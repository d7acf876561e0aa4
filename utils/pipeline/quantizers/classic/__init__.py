"""The archived quantizers, auto-gptq and autoawq, in an environment of their own."""
