// The words that the server sends as `words.js`: see `page_words.py` of the server.

export const WORDS: {
  unreachable: { label: string; caption: string };
  waking: { label: string; caption: string; badge: string; icon: string; pollAfterMs: number };
  actions: Record<string, string>;
  page: Record<
    | "loading"
    | "absent"
    | "absentCaption"
    | "refused"
    | "refusedCaption"
    | "broken"
    | "brokenCaption"
    | "reconnecting"
    | "wakeFailed"
    | "late"
    | "sleepsIn"
    | "aboutToSleep"
    | "asOf"
    | "recreated"
    | "recreatedCaption"
    | "restored"
    | "notRestored",
    string
  >;
};
