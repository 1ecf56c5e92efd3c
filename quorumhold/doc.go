// Package quorumhold keeps locks at a majority of stores.
package quorumhold
