"""Any OpenAI-compatible server as a TextGenerator: bounded answers, defined ends of its faults."""
