"""What passes ask of a whole program, and the parts that several of them are made of."""
