"""A server with the OpenAI API as a TextGenerator, with bounded answers and a defined outcome for every fault."""
