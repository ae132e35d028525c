import { tokenRoute } from "sandkeeper/next";
import { maySee } from "../access";

export const GET = tokenRoute({ authorize: maySee });
