"""A FastAPI application with the Python client: it issues the tokens and runs code in a lease."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import FileResponse, PlainTextResponse

from sandkeeper.client import AsyncSandkeeper

# Here you would ask whether the signed-in user may see the project.
PROJECTS = {"shop"}
KEEPER = os.environ.get("SANDKEEPER_URL", "http://127.0.0.1:7420")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncSandkeeper(KEEPER) as app.state.keeper:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("index.html"))


@app.get("/settings")
async def settings() -> dict[str, str]:
    return {"keeper": KEEPER}


@app.get("/sandkeeper-token")
async def token(project: Annotated[str, Query()]) -> PlainTextResponse:
    if project not in PROJECTS:
        raise HTTPException(403, "This project is not yours.")
    issued = await app.state.keeper.issue_client_token(project)
    return PlainTextResponse(issued.token, headers={"Cache-Control": "no-store"})


@app.post("/hello")
async def hello() -> dict[str, str]:
    async with app.state.keeper.lease("ada", "fastapi-example") as sandbox:
        return {"said": (await sandbox.commands.run("echo hello from inside")).stdout}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
