// The pane's look. A constructed sheet needs no permission from a strict content policy.

export const STYLE = new CSSStyleSheet();
STYLE.replaceSync(`
:host {
 --sk-bg: var(--sandkeeper-background, light-dark(#fff, #101113));
 --sk-ink: var(--sandkeeper-text, light-dark(#1b1d21, #e9eaec));
 --sk-soft: var(--sandkeeper-muted, light-dark(#5c626b, #a0a6b0));
 --sk-line: var(--sandkeeper-line, light-dark(#e2e4e8, #2a2d33));
 --sk-accent: var(--sandkeeper-accent, light-dark(#2456d6, #8fb0ff));
 --sk-on-accent: var(--sandkeeper-on-accent, light-dark(#fff, #0c1530));
 --sk-radius: var(--sandkeeper-radius, 8px);
 --dot: light-dark(#6b7280, #9ca3af);
 display: flex; flex-direction: column; min-height: 240px; overflow: hidden;
 color-scheme: light dark; color: var(--sk-ink); background: var(--sk-bg);
 border: 1px solid var(--sk-line); border-radius: var(--sk-radius);
 font: 14px/1.45 var(--sandkeeper-font, system-ui, sans-serif);
 font-variant-numeric: tabular-nums; container-type: inline-size;
}
* { box-sizing: border-box; }
:host([hidden]), [hidden] { display: none !important; }
:host([theme=light]) { color-scheme: light; }
:host([theme=dark]) { color-scheme: dark; }
[data-badge=green] { --dot: light-dark(#15803d, #4ade80); }
[data-badge=blue] { --dot: light-dark(#1d4ed8, #8fb0ff); }
[data-badge=amber] { --dot: light-dark(#b45309, #fbbf24); }
[data-badge=red] { --dot: light-dark(#b91c1c, #f87171); }
[data-badge=orange] { --dot: light-dark(#c2410c, #fb923c); }
[data-badge=yellow] { --dot: light-dark(#a16207, #fde047); }
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 8px; padding: 4px 8px 4px 12px; min-height: 37px; border-bottom: 1px solid var(--sk-line); }
.state { display: flex; align-items: center; gap: 8px; }
.dot { flex: none; width: 8px; height: 8px; border-radius: 50%; background: var(--dot); }
.label { font-weight: 600; }
.caption, time, .notice { color: var(--sk-soft); font-size: 12px; }
.caption { flex: 1; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.tools { display: flex; align-items: center; gap: 4px; margin-left: auto; }
button, a.tool { font: inherit; color: inherit; cursor: pointer; }
.tool { display: grid; place-items: center; width: 28px; height: 28px; padding: 0; border: 0; border-radius: 6px; background: none; }
.tool:hover { background: color-mix(in srgb, var(--sk-ink) 8%, transparent); }
.chip { border: 1px solid var(--dot); border-radius: 10px; background: none; font-size: 12px; }
.port { width: 64px; height: 24px; font: inherit; color: inherit; background: none; border: 1px solid var(--sk-line); border-radius: 6px; }
.icon { width: 16px; height: 16px; fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linecap: round; stroke-linejoin: round; }
.stage { flex: 1; display: grid; min-height: 200px; outline: none; }
.stage > * { grid-area: 1 / 1; }
iframe { width: 100%; height: 100%; border: 0; background: #fff; }
.overlay { display: grid; place-items: center; padding: 16px; background: radial-gradient(circle at 50% 20%, color-mix(in srgb, var(--dot) 14%, var(--sk-bg)), var(--sk-bg) 70%); }
.card { display: grid; justify-items: center; gap: 12px; max-width: 44ch; width: 100%; padding: 24px; text-align: center; border: 1px solid var(--sk-line); border-radius: calc(var(--sk-radius) * 2); background: color-mix(in srgb, var(--sk-bg) 72%, transparent); backdrop-filter: blur(14px); box-shadow: 0 8px 32px #0000001a; }
.card > .icon { width: 32px; height: 32px; color: var(--dot); }
h2 { margin: 0; font-size: 16px; line-height: 1.3; }
p { margin: 0; color: var(--sk-soft); overflow-wrap: anywhere; }
.primary { min-height: 36px; padding: 0 16px; border: 0; border-radius: var(--sk-radius); background: var(--sk-accent); color: var(--sk-on-accent); font-weight: 600; }
.second { min-height: 32px; padding: 0 12px; border: 1px solid var(--sk-line); border-radius: var(--sk-radius); background: none; }
.row { display: flex; flex-wrap: wrap; justify-content: center; gap: 8px; }
:focus-visible { outline: 2px solid var(--sk-accent); outline-offset: 2px; }
ol { display: flex; flex-wrap: wrap; justify-content: center; gap: 4px 12px; margin: 0; padding: 0; list-style: none; font-size: 12px; color: var(--sk-soft); }
li[data-now] { color: var(--sk-ink); font-weight: 600; }
progress { width: 100%; height: 4px; accent-color: var(--sk-accent); }
pre { width: 100%; max-height: 160px; margin: 0; padding: 8px; overflow: auto; text-align: left; font: 12px monospace; border: 1px solid var(--sk-line); border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
.receipt { padding: 8px 12px; border-bottom: 1px solid var(--sk-line); font-size: 12px; }
[aria-busy] .primary { opacity: .6; }
@media (prefers-reduced-motion: no-preference) {
 [data-pulsing] .dot { animation: pulse 1.4s ease-in-out infinite; }
 .spinner, [aria-busy] > .icon { animation: turn 1s linear infinite; }
}
@media (prefers-reduced-transparency: reduce) { .card { background: var(--sk-bg); backdrop-filter: none; } }
@media (forced-colors: active) { .dot { forced-color-adjust: none; } .primary { border: 1px solid ButtonText; } }
@keyframes pulse { 50% { opacity: .35; } }
@keyframes turn { to { rotate: 360deg; } }
@container (max-width: 520px) { .caption, .age { display: none; } .card { padding: 16px; } }
`);
