// Command promises writes docs/promises.md, and the table of promises in README.md, from the traits that the stores
// themselves report. So the documents cannot promise what the code does not claim, and drivertest holds the code to it.
package main

//go:generate go run . ../../..

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := write(root); err != nil {
		fmt.Fprintln(os.Stderr, "promises:", err)
		os.Exit(1)
	}
}

// write brings the generated files under root up to date.
func write(root string) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the generated files, by name, with the content they should have.
func generate(root string) (map[string][]byte, error) {
	stores, err := open()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"docs/promises.md": page(stores)}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	if err != nil {
		return nil, err
	}
	if files["README.md"], err = embed(readme, table(stores)); err != nil {
		return nil, fmt.Errorf("README.md: %w", err)
	}
	return files, nil
}

const begin, end = "<!-- promises -->\n", "<!-- /promises -->"

// embed replaces what stands between the marks, if there are any.
func embed(doc []byte, block string) ([]byte, error) {
	head, rest, found := bytes.Cut(doc, []byte(begin))
	if !found {
		return doc, nil
	}
	_, tail, found := bytes.Cut(rest, []byte(end))
	if !found {
		return nil, fmt.Errorf("%q is missing", end)
	}
	return bytes.Join([][]byte{head, []byte(begin), []byte(block), []byte(end), tail}, nil), nil
}
