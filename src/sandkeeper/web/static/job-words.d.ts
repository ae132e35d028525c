// The words of a job's preview, which the server sends as `job-words.js`.

export const JOB_WORDS: Record<
  | "pausedTitle"
  | "resume"
  | "resuming"
  | "failedTitle"
  | "expired"
  | "unreachable"
  | "killed"
  | "providerDown"
  | "rebuild"
  | "confirmRebuild",
  string
>;
