"""`valkyrie eval` and its kin: eval specs on the engine, and what they leave."""
