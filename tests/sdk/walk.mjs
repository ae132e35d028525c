// Walks through every call of the official JavaScript SDK against one engine; run as a program,
// with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set. Prints one line per step that held.
import assert from 'node:assert/strict'
import { CommandExitError, FileType, NotFoundError, Sandbox, Template } from 'e2b'

const steps = {
  async theControlPlane(box) {
    const info = await box.getInfo()
    assert.equal(info.sandboxId, box.sandboxId)
    assert.deepEqual(info.metadata, { walk: 'a b/1' })
    const pages = Sandbox.list({ query: { metadata: { walk: 'a b/1' }, state: ['running'] }, limit: 1 })
    const found = []
    while (pages.hasNext) found.push(...(await pages.nextItems()))
    assert.ok(found.some((one) => one.sandboxId === box.sandboxId))
    await box.setTimeout(900_000)
    assert.ok((await box.getInfo()).endAt > info.endAt)
    assert.ok(await box.isRunning())
    assert.ok(Array.isArray(await box.getMetrics()))
  },
  async commands(box) {
    let out = ''
    const result = await box.commands.run('echo out; echo err >&2', { onStdout: (text) => { out += text } })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode, out], ['out\n', 'err\n', 0, 'out\n'])
    assert.equal((await box.commands.run('whoami', { user: 'root' })).stdout, 'root\n')
    assert.equal((await box.commands.run('echo $A$B', { envs: { B: '2' } })).stdout, '12\n')
    await assert.rejects(box.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  },
  async backgroundCommands(box) {
    const handle = await box.commands.run('cat; echo end', { background: true, stdin: true })
    assert.ok((await box.commands.list()).some((process) => process.pid === handle.pid))
    await box.commands.sendStdin(handle.pid, 'typed\n')
    await box.commands.closeStdin(handle.pid)
    assert.equal((await handle.wait()).stdout, 'typed\nend\n')
    const sleeper = await box.commands.run('sleep 1000', { background: true })
    assert.ok(await box.commands.kill(sleeper.pid))
    await assert.rejects(sleeper.wait(), CommandExitError)
    assert.ok(!(await box.commands.kill(sleeper.pid)))
  },
  async terminals(box) {
    let heard = ''
    const terminal = await box.pty.create({ rows: 24, cols: 80, onData: (data) => { heard += new TextDecoder().decode(data) } })
    await box.pty.resize(terminal.pid, { rows: 30, cols: 100 })
    await box.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit 0\n'))
    assert.equal((await terminal.wait()).exitCode, 0)
    assert.match(heard, /30 100/)
  },
  async files(box) {
    await box.files.write('dir/ü.txt', 'héllo')
    assert.equal(await box.files.read('dir/ü.txt'), 'héllo')
    assert.ok(await box.files.makeDir('dir/sub'))
    assert.ok(!(await box.files.makeDir('dir/sub')))
    const info = await box.files.getInfo('dir/ü.txt')
    assert.deepEqual([info.type, info.size], [FileType.FILE, 6])
    assert.deepEqual((await box.files.list('dir')).map((entry) => entry.name).sort(), ['sub', 'ü.txt'])
    assert.equal((await box.files.rename('dir/ü.txt', 'dir/sub/m.txt')).path, '/home/user/dir/sub/m.txt')
    await box.files.remove('dir')
    assert.ok(!(await box.files.exists('dir')))
    await assert.rejects(box.files.read('nowhere'), NotFoundError)
  },
  async watching(box) {
    await box.files.makeDir('watched')
    const seen = await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('no event came')), 30_000).unref()
      box.files
        .watchDir('watched', (event) => event.name === 'new.txt' && resolve(event), { recursive: true })
        .then(() => box.files.write('watched/new.txt', '1'), reject)
    })
    assert.equal(seen.name, 'new.txt')
  },
  async signedUrls(box) {
    await box.files.write('signed.txt', 'by url')
    const answer = await fetch(await box.downloadUrl('signed.txt', { useSignatureExpiration: 600_000 }))
    assert.equal(await answer.text(), 'by url')
  },
  async sleepAndWake(box) {
    await box.files.write('kept.txt', 'kept')
    await box.pause()
    assert.ok(!(await box.isRunning()))
    const back = await Sandbox.connect(box.sandboxId, { timeoutMs: 600_000 })
    assert.equal(await back.files.read('kept.txt'), 'kept')
  },
  async snapshots(box) {
    await box.files.write('snapped.txt', 'then')
    const snapshot = await box.createSnapshot()
    await box.files.write('snapped.txt', 'later')
    const twin = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
    assert.equal(await twin.files.read('snapped.txt'), 'then')
    await twin.kill()
    assert.ok(await Sandbox.deleteSnapshot(snapshot.snapshotId))
  },
  async templates() {
    const template = Template().fromTemplate('base').setEnvs({ BUILT: 'yes' }).runCmd('echo made > /home/user/made.txt')
    await Template.build(template, { alias: 'walk-js' })
    const box = await Sandbox.create('walk-js', { timeoutMs: 60_000 })
    assert.equal(await box.files.read('/home/user/made.txt'), 'made\n')
    await box.kill()
  },
  async endings(box) {
    assert.ok(await box.kill())
    assert.ok(!(await Sandbox.kill(box.sandboxId)))
    await assert.rejects(Sandbox.connect(box.sandboxId, { timeoutMs: 60_000 }), NotFoundError)
  },
}

const box = await Sandbox.create('base', { timeoutMs: 600_000, metadata: { walk: 'a b/1' }, envs: { A: '1' } })
for (const [name, step] of Object.entries(steps)) {
  await step(box)
  console.log('held:', name)
}
process.exit(0)
