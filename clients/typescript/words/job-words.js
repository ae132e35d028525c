// Made from the code by `UPDATE_DOCS=1 pytest tests/conventions`; do not edit.
export const JOB_WORDS = {
 "pausedTitle": "Your preview is sleeping.",
 "resume": "Resume preview",
 "resuming": "Resuming preview...",
 "failedTitle": "Resume failed",
 "expired": "The sandbox has expired and can't be recovered.",
 "unreachable": "The sandbox couldn't be reached. It may be corrupted.",
 "killed": "The sandbox was killed. A rebuild brings back its saved files.",
 "providerDown": "The provider can't be reached. Try again in a moment.",
 "rebuild": "Rebuild",
 "confirmRebuild": "This will use 1 build credit. Continue?"
};
