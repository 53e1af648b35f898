"""Matrix products that compute only the triangle that causal attention needs."""
