/** Return whether the user may see the project. Here you would look at the session of the signed-in user. */
export async function maySee(project: string): Promise<boolean> {
  return project === "shop";
}
