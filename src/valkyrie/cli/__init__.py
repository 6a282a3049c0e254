"""argv → verb → printing. One module per noun, no logic of its own."""
