"""Training of decoders: imitation (SFT), reinforcement (GRPO), and both in turns (STITCH)."""
