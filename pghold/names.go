package pghold

import (
	"crypto/sha256"
	"encoding/binary"
)

// lockIDDomain keeps these numbers apart from those of other programs that hash the same names. It is part of the
// function, so it never changes.
const lockIDDomain = "holdlock advisory lock 1"

// LockID returns the number under which an advisory lock of PostgreSQL stands for a key: the first 8 bytes, big endian and
// as a signed number, of
//
//	SHA-256("holdlock advisory lock 1" 00 namespace 00 key)
//
// where key is LOCK or LOCK/KEY and neither part can contain a zero byte. Programs of different releases exclude each
// other only because of it, so it is frozen; golden values stand in the tests.
//
// Two names that share a number would exclude each other without need, and never fail to exclude. Among a million names
// that happens with a chance of 1 in 37 million; with the 32 bits of hashtext there are over a hundred such pairs.
// Advisory locks taken by other programs with small numbers are as unlikely to be met. All scopes of this package use the same
// number, so a lock that one program takes in its transaction excludes another one's session; lease rows have no number.
//
// PostgreSQL keeps these numbers apart by database: programs that connect to different databases of one server do not
// exclude each other.
func LockID(namespace, key string) int64 {
	b := make([]byte, 0, 128)
	b = append(b, lockIDDomain...)
	b = append(b, 0)
	b = append(b, namespace...)
	b = append(b, 0)
	b = append(b, key...)
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
