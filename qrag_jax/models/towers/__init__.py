"""The two-tower Q network: text towers, latent towers, scores by position."""
