// The shapes of the API by name, made from its OpenAPI document.

import type { components } from "./openapi.js";

type Schemas = components["schemas"];

export type Status = Schemas["Status"];
export type State = Status["status"];
export type Change = Schemas["ChangeOut"];
export type Explanation = Schemas["ExplanationOut"];
export type CreateSandbox = Schemas["CreateSandboxRequest"];
export type Policy = Schemas["PolicyRequest"];
export type Wake = Schemas["WakeOut"];
export type Receipt = Schemas["ReceiptOut"];
export type WarmResult = Schemas["WarmResult"];
export type AppLog = Schemas["AppLogOut"];
export type Activity = Schemas["ActivityOut"];
export type KeptFile = Schemas["File"];
export type FileEdit = Schemas["FileEdit"];
export type Capture = Schemas["CaptureOut"];
export type FileVersion = Schemas["NamedVersionOut"];
export type PathChange = Schemas["PathChangeOut"];
export type FileDiff = Schemas["FileDiff"];
export type Restored = Schemas["RestoreOut"];
export type Checkpoint = Schemas["CheckpointOut"];
export type Fork = Schemas["ForkOut"];
export type LeaseInfo = Schemas["LeaseOut"];
export type SdkConnection = Schemas["SdkConnection"];
export type Session = Schemas["SessionOut"];
export type AcquiredSession = Schemas["SessionAcquired"];
export type AcquireSession = Schemas["AcquireSessionRequest"];
export type Job = Schemas["JobOut"];
export type CreateJob = Schemas["CreateJobRequest"];
export type UpdateJob = Schemas["UpdateJobRequest"];
export type JobSnapshot = Schemas["Snapshot"];
export type ResumedJob = Schemas["Resumed"];
export type Rebuild = Schemas["Rebuilt"];
export type ClientToken = Schemas["ClientToken"];
export type FleetSummary = Schemas["FleetSummary"];
export type Readiness = Schemas["Readiness"];

/** A page of a list. */
export interface Page<T> {
  items: T[];
  nextCursor: string | null;
}

/** What a stream yields: a change of the event log, or the status after it. */
export type StreamEvent = { type: "change"; change: Change } | { type: "status"; status: Status };
