"""What no plan can go below, and the proofs: of peak, of cost, of a whole search."""
