ROUTING = "power_law_1.01"
