// Made from the code by `UPDATE_DOCS=1 pytest tests/conventions`; do not edit.
export const WORDS = {
 "unreachable": {
  "label": "Connection issue",
  "caption": "Cannot verify sandbox status. Check your connection and try again."
 },
 "waking": {
  "label": "Waking sandbox...",
  "caption": "Your files and your app are coming back.",
  "badge": "blue",
  "icon": "spinner",
  "pollAfterMs": 2000
 },
 "actions": {
  "wake": "Wake sandbox",
  "retry": "Retry",
  "restart": "Restart app"
 },
 "page": {
  "loading": "Loading…",
  "absent": "No sandbox yet",
  "absentCaption": "The preview appears when one is created.",
  "refused": "Preview refused",
  "refusedCaption": "The preview has the same origin as this page. Serve it from another host name.",
  "broken": "Preview not loaded",
  "brokenCaption": "The app was ready, but the preview does not load. It is tried again.",
  "reconnecting": "Reconnecting…",
  "wakeFailed": "The wake did not succeed.",
  "late": "This takes longer than usual.",
  "sleepsIn": "sleeps in",
  "aboutToSleep": "about to sleep",
  "asOf": "as of",
  "recreated": "Recreated",
  "recreatedCaption": "A new sandbox.",
  "restored": "Restored",
  "notRestored": "Not restored"
 }
};
