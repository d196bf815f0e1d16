"""Adapters for the libraries where people work; each imports its library when it is used."""
