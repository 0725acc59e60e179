"""What the master decides, as pure state machines: events in, commands out, time as an argument."""
