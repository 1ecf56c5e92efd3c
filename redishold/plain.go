package redishold

// With PlainKeys the lock itself is the key of that name, and a slot beside it describes our own terms. On a Cluster both
// have to be on one node: a name without braces is the tag of its slot, as it is the whole of its own hash. Names with a
// closing brace are refused there.

// plainSlotKey names the slot beside a plain key.
func (d *Driver) plainSlotKey(key string) string { return d.ns + ":plain:{" + key + "}" }

// slotPrefix is what the names of all slots begin with.
func (d *Driver) slotPrefix() string {
	if d.plain {
		return d.ns + ":plain:{"
	}
	return d.prefix
}
