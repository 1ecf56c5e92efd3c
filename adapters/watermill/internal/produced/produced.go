// Package produced writes the messages that a handler returned into the record of its job, and reads them.
package produced

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

const version = 1

// The names are short because a record has little room.
type kept struct {
	Version  int           `json:"v"`
	Messages []keptMessage `json:"m"`
}

type keptMessage struct {
	UUID     string            `json:"u"`
	Metadata map[string]string `json:"h,omitempty"`
	Payload  []byte            `json:"p"`
}

// Pack returns what is to be kept; nil of no messages.
func Pack(messages []*message.Message) ([]byte, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	k := kept{Version: version}
	for _, m := range messages {
		k.Messages = append(k.Messages, keptMessage{m.UUID, m.Metadata, m.Payload})
	}
	return json.Marshal(k)
}

// Unpack returns the messages, new ones with the old UUIDs.
func Unpack(b []byte) ([]*message.Message, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, err
	}
	if k.Version != version {
		return nil, fmt.Errorf("they were written by another release, as version %d; this one reads version %d", k.Version, version)
	}
	var messages []*message.Message
	for _, m := range k.Messages {
		msg := message.NewMessage(m.UUID, m.Payload)
		for name, value := range m.Metadata {
			msg.Metadata.Set(name, value)
		}
		messages = append(messages, msg)
	}
	return messages, nil
}
