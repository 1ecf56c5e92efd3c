// Package choosing is the code of docs/choosing.md: one file for each answer. Its tests let every job run twice, or die, and look
// at what has become of its effect.
package choosing
