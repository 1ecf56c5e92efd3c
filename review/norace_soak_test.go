//go:build soak && !race

package review

const raceDetector = false
