package diagram

import "strings"

// style is the style of a picture in a file: the dashboard's colours, for light and dark
// themes.
const style = `<style>
.diagram {
	--panel: #fff; --ink: #1b2230; --soft: #59657a; --line: #dde2ea; --accent: #1d5fd0; --accent-ink: #fff;
	background: #f6f7f9
}
@media (prefers-color-scheme: dark) {
	.diagram {
		--panel: #181e28; --ink: #e4e9f1; --soft: #9aa7bb; --line: #2a3342; --accent: #7fb0ff; --accent-ink: #0d1420;
		background: #10141b
	}
}
.diagram rect { fill: var(--panel); stroke: var(--soft); stroke-width: 1.3 }
.diagram .inner { fill: none; stroke: var(--line); stroke-width: 1 }
.diagram text { fill: var(--ink); font: 550 13px system-ui, sans-serif; text-anchor: middle }
.diagram .count { fill: var(--soft); font-weight: 400; font-size: 12px }
.diagram .been > rect:first-of-type { stroke: var(--accent); stroke-width: 1.8 }
.diagram .now > rect:first-of-type { fill: var(--accent); stroke: var(--accent) }
.diagram .now .inner { stroke: var(--accent-ink) }
.diagram .now text { fill: var(--accent-ink) }
.diagram .edge { fill: none; stroke: var(--soft); stroke-width: 1.2; opacity: .75 }
.diagram .edge.been { stroke: var(--accent); stroke-width: 2; opacity: 1 }
.diagram .tip, .diagram .begin { fill: var(--soft) }
.diagram .tip.been { fill: var(--accent) }
</style>
`

// File draws the states as the text of an SVG file that contains its style.
func File(states []State, d Drawing) string {
	picture := string(SVG(states, d))
	head, rest, _ := strings.Cut(picture, ">") // SVG escapes every ">" in the attributes
	return strings.Replace(head, "<svg ", `<svg xmlns="http://www.w3.org/2000/svg" `, 1) + ">\n" + style + rest + "\n"
}
